"""What a training has to say about itself, beside its figures."""

from loomrl.training.job import TrainingJob
from loomrl.training.loop import TrainingLoop


def remarks(job: TrainingJob, loop: TrainingLoop) -> list[str]:
    """Sentences, each with what to do about it; none where all is well."""
    found = []
    if loop.num_episodes == 0:
        found.append(no_episode_ended(loop.env_steps, loop.algorithm.num_envs, job.snapshot.spec.max_episode_steps))
    if loop.cuts_episodes:
        found.append(
            f"episodes under way ended at every checkpoint: environment.backend {job.learning_backend!r} cannot save "
            "them; set environment.backend to auto, or raise training.checkpoint_interval_env_steps"
        )
    return found


def no_episode_ended(env_steps: int, num_envs: int, max_episode_steps: int | None) -> str:
    """The sentence about a training of so many steps in so many environments."""
    each = env_steps // num_envs
    said = f"no episode ended in {env_steps} environment steps: each of {num_envs} environments took {each}"
    if max_episode_steps is None:
        return f"{said}, and an episode has no time limit; set environment.max_episode_steps below that"
    return (
        f"{said}, and an episode may take {max_episode_steps}; raise training.total_env_steps above "
        f"{num_envs * max_episode_steps}, or lower training.parameters.num_envs or environment.max_episode_steps"
    )
