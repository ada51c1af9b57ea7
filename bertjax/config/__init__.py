"""All settings of a run as frozen typed dataclasses, and recipes and overrides that build them.

Only the run and its stages take the whole `Config`; other packages take the part that they need.
"""

from bertjax.config.data import SHORTEST_ROW, SHORTEST_TEXT, DataConfig
from bertjax.config.model import DEFAULT_EXECUTION, FROM_VOCABULARY, SPAN_POSITIONS, ExecutionConfig, ModelConfig
from bertjax.config.recipes import get_variant, load_recipe, override
from bertjax.config.run import (
    Config,
    DistillationConfig,
    FinetuneConfig,
    HostsConfig,
    MeshConfig,
    OptimizerConfig,
    ProbeConfig,
    StageConfig,
    TaskConfig,
    TrainingConfig,
    validate,
)
from bertjax.config.values import differences, flatten, from_dict, render, render_all, to_dict, with_values

__all__ = [
    "DEFAULT_EXECUTION",
    "FROM_VOCABULARY",
    "SHORTEST_ROW",
    "SHORTEST_TEXT",
    "SPAN_POSITIONS",
    "Config",
    "DataConfig",
    "DistillationConfig",
    "ExecutionConfig",
    "FinetuneConfig",
    "HostsConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ProbeConfig",
    "StageConfig",
    "TaskConfig",
    "TrainingConfig",
    "differences",
    "flatten",
    "from_dict",
    "get_variant",
    "load_recipe",
    "override",
    "render",
    "render_all",
    "to_dict",
    "validate",
    "with_values",
]
