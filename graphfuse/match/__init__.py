"""Finding regions, legality before profit, rewriting, restoring, explaining."""

from graphfuse.match.planfile import Plan, PlannedRegion, Refusal, load_plan, save_plan
from graphfuse.match.plugin_form import Exported, export_plugin
from graphfuse.match.restore import is_fused, restore_model
from graphfuse.match.rewrite import FusedRegion, Rewritten, rewrite_model

__all__ = [
    "Exported", "FusedRegion", "Plan", "PlannedRegion", "Refusal", "Rewritten", "export_plugin", "is_fused", "load_plan", "restore_model",
    "rewrite_model", "save_plan",
]  # fmt: skip
