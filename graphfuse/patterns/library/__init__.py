"""The patterns that come with graphfuse, larger ones before those that may be parts of them."""

from graphfuse.patterns.library.gelu import GELU_ERF, GELU_TANH
from graphfuse.patterns.library.group_norm import GROUP_NORM
from graphfuse.patterns.library.hard_swish import HARD_SWISH
from graphfuse.patterns.library.layer_norm import LAYER_NORM
from graphfuse.patterns.library.rms_norm import RMS_NORM
from graphfuse.patterns.library.rope import ROPE
from graphfuse.patterns.library.sigmoid import SIGMOID, SOFTPLUS
from graphfuse.patterns.library.softmax import LOG_SOFTMAX, SOFTMAX, STABLE_SOFTMAX
from graphfuse.patterns.library.swiglu import SWIGLU, SWISH
from graphfuse.patterns.library.variance import VARIANCE
from graphfuse.patterns.pattern import Pattern

LIBRARY: tuple[Pattern, ...] = (
    VARIANCE, SOFTMAX, LOG_SOFTMAX, SIGMOID, SOFTPLUS, LAYER_NORM, RMS_NORM, GROUP_NORM, GELU_ERF, GELU_TANH, STABLE_SOFTMAX, ROPE,
    SWIGLU, SWISH, HARD_SWISH,
)  # fmt: skip
