"""Warnings about a finished training: what its figures do not show."""

from loomrl.training.job import TrainingJob
from loomrl.training.loop import TrainingLoop


def training_warnings(job: TrainingJob, loop: TrainingLoop) -> list[str]:
    """Warnings about a training that has ended, each a sentence that names the fix; empty where there are none."""
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
    """The warning, one sentence with its fix, that no episode has ended in a training of `env_steps` steps over
    `num_envs` environments. `max_episode_steps` is an episode's time limit; None: it has none."""
    each = env_steps // num_envs
    sentence = f"no episode ended in {env_steps} environment steps: each of {num_envs} environments took {each}"
    if max_episode_steps is None:
        return f"{sentence}, and an episode has no time limit; set environment.max_episode_steps below that"
    return (
        f"{sentence}, and an episode may take {max_episode_steps}; raise training.total_env_steps above "
        f"{num_envs * max_episode_steps}, or lower training.parameters.num_envs or environment.max_episode_steps"
    )
