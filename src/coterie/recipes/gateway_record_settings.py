"""Settings of ``coterie gateway``."""

from typing import ClassVar

from coterie.config.settings import Settings, key
from coterie.environments.settings import EnvironmentSettings
from coterie.models.catalogue import ModelName
from coterie.recipes.settings import RecipeSettings


class SampledSettings(Settings):
    """Sampling of the replies."""

    temperature: float = key(1.0, "Sampling temperature; 0 is greedy.", ge=0, le=2)
    top_p: float = key(1.0, "Nucleus of the sampling.", gt=0, le=1)
    max_tokens: int = key(512, "Maximum tokens of a reply.", ge=1)


class GatewayRecordSettings(RecipeSettings):
    """Record programs that are started elsewhere. `coterie gateway` serves them."""

    recipe: ClassVar[str] = "gateway_record"
    environment: EnvironmentSettings = EnvironmentSettings(name="external")
    models: dict[str, ModelName] = key(
        {}, "Models of single roles; `model` plays the others. `--roles a,b=MODEL` sets it."
    )
    rollout: SampledSettings = SampledSettings()


METHODS = (GatewayRecordSettings,)
