"""Which architectures we know, by `model_type`: all tables together."""

from collections.abc import Mapping

from kvbudget.model.families.family import Family
from kvbudget.model.families.latent import LATENT
from kvbudget.model.families.other import OTHER
from kvbudget.model.families.plain import PLAIN
from kvbudget.model.families.pooled import POOLED
from kvbudget.model.families.recurrent import RECURRENT
from kvbudget.model.families.sliding import SLIDING
from kvbudget.model.families.uniform import UNIFORM

FAMILIES: Mapping[str, Family] = {**UNIFORM, **PLAIN, **SLIDING, **LATENT, **RECURRENT, **POOLED, **OTHER}
