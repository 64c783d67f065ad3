"""How a policy is served: the section `serving` of its config, which a version carries in a signed statement."""

from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from loomrl.errors import ConfigError
from loomrl.serving.guardian.config import MonitorsConfig
from loomrl.system.schema import Section, first_problem

SERVING = "loomrl.serving"  # the tag of versions from before statements were signed: the section as JSON

Kind = Literal["policy", "epsilon", "softmax", "gaussian"]
_OF_KIND = {"epsilon": "epsilon", "temperature": "softmax", "sigma": "gaussian"}  # whose setting each of them is


class ExplorationConfig(Section):
    """How actions are drawn for agents that ask to explore, and how often for those that do not.

    `policy` is the policy's own distribution, `epsilon` one of all actions at random so often and else the greedy one,
    `softmax` the choices by logits / temperature, `gaussian` the greedy action and noise. Without a `kind` it is
    `epsilon` where logits are action values, as DQN's are, and else `policy`.
    """

    kind: Kind | None = None
    epsilon: float = Field(default=0.1, ge=0, le=1)
    temperature: float = Field(default=1.0, gt=0)
    sigma: float = Field(default=0.1, gt=0)  # standard deviation, in the action's own units
    share: float = Field(default=0.0, ge=0, lt=1)  # of the decisions nobody asked to explore in

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        for name, kind in _OF_KIND.items():
            if self.kind != kind and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"`{name}` is for `kind: {kind}`, found kind {self.kind}; leave it out, or change kind"
                )
        return self

    @classmethod
    def read(cls, text: str) -> "ExplorationConfig":
        """The settings in a text such as `kind=epsilon,epsilon=0.05,share=0.1`.

        Raises:
            ConfigError: naming the setting.
        """
        settings: dict[str, str | float] = {}
        for part in text.split(","):
            name, equals, value = part.strip().partition("=")
            if not equals:
                raise ConfigError(f"--explore {text!r}: {part.strip()!r} is not SETTING=VALUE, such as kind=epsilon")
            settings[name] = value if name == "kind" else _number(value, text)
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise ConfigError(f"--explore {text!r}: {first_problem(error)}") from error


class ServingConfig(Section):
    """What the server does with a version beyond answering: how it explores, and what its monitors hold it to."""

    exploration: ExplorationConfig = Field(default_factory=ExplorationConfig)
    monitors: MonitorsConfig = Field(default_factory=MonitorsConfig)

    @classmethod
    def read_tag(cls, text: str | bytes, version: str, tag: str = SERVING) -> "ServingConfig":
        """The settings in a version's tag, or in what is signed of it, as JSON.

        Raises:
            ConfigError: naming the version and the key.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"{version}: its tag {tag}: {first_problem(error)}; correct it in MLflow") from error


def _number(value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise ConfigError(f"--explore {text!r}: {value!r} is no number") from error
