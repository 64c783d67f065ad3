"""New weights for a policy, as they come: a folder it was saved in, or safetensors in base64; nothing is unpickled."""

import base64
import binascii
import copy
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from loomrl.errors import ArtifactError, ConfigError
from loomrl.language.policies.policy import LanguagePolicy

_SHOWN = 200  # characters of a path that an answer repeats


def read_folder(path: str) -> LanguagePolicy:
    """The policy that a folder holds, see `LanguagePolicy.load`.

    Raises:
        ArtifactError: where it holds none, or what is no file, such as a pipe: to read that may take for ever.
        ConfigError: for a path that is not absolute, or a Hugging Face model where `transformers` is not installed.
    """
    folder = Path(path)
    if not folder.is_absolute():
        raise ConfigError(f"{path} is no absolute path, and this server may run elsewhere than who names it")
    try:
        others = [one.name for one in folder.iterdir() if one.exists() and not (one.is_file() or one.is_dir())]
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path[:_SHOWN]!r} is no folder that can be read: {type(error).__name__}") from error
    if others:
        raise ArtifactError(f"{path} holds what is no file: {', '.join(others)}")
    return LanguagePolicy.load(folder)


def unpacked(*packed: str) -> dict[str, Tensor]:
    """Tensors by their names, of safetensors files that are given as texts in base64.

    Raises:
        ArtifactError: for what is no safetensors in base64.
    """
    tensors: dict[str, Tensor] = {}
    for one in packed:
        try:
            tensors |= safetensors.torch.load(base64.b64decode(one, validate=True))
        except (binascii.Error, SafetensorError, ValueError) as error:
            raise ArtifactError(f"the tensors are no safetensors in base64: {error}") from error
    return tensors


def with_weights(policy: LanguagePolicy, tensors: Mapping[str, Tensor]) -> LanguagePolicy:
    """A copy of a policy with other weights, all of them; the tokenizer is shared, and the policy itself unchanged.

    Raises:
        ArtifactError: naming the weights that are missing, unknown, or of another shape or type.
    """
    check_kinds(policy, tensors)
    if missing := [name for name in policy.model.weights() if name not in tensors]:
        raise ArtifactError(f"these weights are not all: {', '.join(missing)} did not come")
    model = copy.deepcopy(policy.model)
    model.load_weights(tensors)
    return policy.with_model(model)


def check_kinds(policy: LanguagePolicy, tensors: Mapping[str, Tensor]) -> None:
    """Check that tensors are weights of a policy, some or all.

    Raises:
        ArtifactError: for a name, shape or type that is not the policy's.
    """
    wanted = policy.model.weights()
    for name, given in tensors.items():
        if name not in wanted:
            raise ArtifactError(f"{name} is no weight of the policy; it has {', '.join(wanted)}")
        if (given.shape, given.dtype) != (wanted[name].shape, wanted[name].dtype):
            right = f"{wanted[name].dtype} {list(wanted[name].shape)}"
            raise ArtifactError(f"{name} is {given.dtype} {list(given.shape)}; the policy has {right}")


def is_same(version: int, weights: Mapping[str, Tensor], served: tuple[Mapping[str, Tensor], int] | None) -> bool:
    """Whether new weights are those served already, with the version they have.

    Raises:
        ConfigError: for a version below 0, or one that is served with other weights.
        ArtifactError: when a weight is not finite.
    """
    if version < 0:
        raise ConfigError(f"version {version}: a number from 0 on")
    _require_finite(weights)
    if served is None or served[1] != version:
        return False
    ours = served[0]
    if ours.keys() != weights.keys() or not all(torch.equal(value, weights[name]) for name, value in ours.items()):
        raise ConfigError(f"version {version} is served already, with other weights; give these another")
    return True


def _require_finite(weights: Mapping[str, Tensor]) -> None:
    """Raise ArtifactError, naming the weight, where one holds a number that is not finite."""
    for name, value in weights.items():
        if not value.isfinite().all():
            raise ArtifactError(f"the weight {name} holds a number that is not finite; these weights are not served")
