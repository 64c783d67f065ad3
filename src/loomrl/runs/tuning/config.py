"""Which settings of training are searched, and where."""

from pydantic import Field, model_validator

from loomrl.system.schema import Section

_JUDGES = ("training.seed", "training.validation", "training.total_env_steps")  # what makes trials comparable


class SearchConfig(Section):
    """Where a setting is searched: numbers from `low` to `high`, both included, whole ones where both bounds are; or
    one of the `choices`. Anything else, or both, raises `ValueError`."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False  # drawn evenly by their logarithms: as many below the geometric mean as above
    choices: list[bool | int | float | str] | None = Field(default=None, min_length=2)

    @model_validator(mode="after")
    def _searchable(self) -> "SearchConfig":
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log:
                raise ValueError("needs either `choices` or `low` and `high`, not both")
            return self
        if self.low is None or self.high is None:
            raise ValueError("needs `low` and `high`, or `choices`")
        if self.low >= self.high:
            raise ValueError(f"low {self.low} must be below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"`log: true` needs low above 0, found {self.low}")
        return self


class TuningConfig(Section):
    """A search for settings of training. Each of `num_trials` trials trains with `num_seeds` seeds, `training.seed`,
    `training.seed + 1`, ...; the mean of their best validation returns counts.

    `total_env_steps` lets trials train shorter than the policy will; None: as long. `parameters` says by key, such as
    `training.parameters.learning_rate`, where each setting is searched.
    """

    num_trials: int = Field(default=20, ge=1)
    num_seeds: int = Field(default=1, ge=1)
    total_env_steps: int | None = Field(default=None, ge=1)
    parameters: dict[str, SearchConfig] = Field(min_length=1)

    @model_validator(mode="after")
    def _of_training(self) -> "TuningConfig":
        for key in self.parameters:
            if not key.startswith("training."):
                raise ValueError(f"{key!r} cannot be tuned: trials only train; name a setting under `training.`")
            if key.startswith(_JUDGES):
                raise ValueError(f"{key!r} cannot be tuned: trials are compared by it")
        return self
