"""Learning as a loop: collect groups from wherever they come, update, tell the source."""

from collections.abc import Iterator

from loomrl.algorithms.base import State, below
from loomrl.language.learning.learner import LanguageLearner
from loomrl.language.learning.sources import GroupSource


class LanguageTrainer:
    """Trains a learner on the groups of a source, and saves both as one."""

    def __init__(self, learner: LanguageLearner, source: GroupSource) -> None:
        self.learner, self.source = learner, source

    def run(self, num_updates: int) -> Iterator[dict[str, float]]:
        """Make so many updates; yields the metrics of each, see `LanguageLearner.update`. An update begins when the
        next metrics are requested.

        Raises:
            ServiceError: when the source's hub or engine cannot be reached; what was learnt before is kept.
            ArtifactError: for tokens that the policy cannot read.
            LoomRLError: when a gradient is not finite.
        """
        for _ in range(num_updates):
            groups = self.source.collect(self.learner.policy, self.learner.version)
            metrics = self.learner.update(groups)
            self.source.acknowledge(self.learner.version)
            yield metrics

    def state_dict(self) -> State:
        """All state that a bit-identical continuation needs: the learner's and the source's."""
        parts = {"learner": self.learner.state_dict(), "source": self.source.state_dict()}
        return {f"{part}.{name}": value for part, state in parts.items() for name, value in state.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal trainer."""
        self.learner.load_state_dict(below("learner.", state))
        self.source.load_state_dict(below("source.", state))
