"""Public names and their packages, which `__init__` imports when they are first used."""

from . import (
    bill as bill,
    blocks as blocks,
    conventions as conventions,
    curvature as curvature,
    data as data,
    drawing as drawing,
    errors as errors,
    export as export,
    figures as figures,
    inspection as inspection,
    linalg as linalg,
    models as models,
    report as report,
    settings as settings,
    signal as signal,
    simplify as simplify,
    statistics as statistics,
    storage as storage,
    tensor_formats as tensor_formats,
    theory as theory,
    training as training,
)
from ._version import __version__ as __version__
from .bill import (
    Bill as Bill,
    Change as Change,
    activation_changes as activation_changes,
    cache_changes as cache_changes,
    change_each as change_each,
    in_format as in_format,
    merged as merged,
    price as price,
    pruned as pruned,
    quantise as quantise,
    removed as removed,
    rounded as rounded,
)
from .blocks import PRESETS as PRESETS, BlockConfig as BlockConfig, preset as preset
from .curvature import (
    EmpiricalFisher as EmpiricalFisher,
    Functional as Functional,
    Hessian as Hessian,
    MonteCarloFisher as MonteCarloFisher,
    OuterProduct as OuterProduct,
    ParameterGroup as ParameterGroup,
    Problem as Problem,
    check_derivatives as check_derivatives,
    curvature_map as curvature_map,
    custom_groups as custom_groups,
    exact_attention_curvature as exact_attention_curvature,
    exact_last_block as exact_last_block,
    group_norms as group_norms,
    parameter_groups as parameter_groups,
    select_groups as select_groups,
    second_order_attention as second_order_attention,
)
from .data import text_batch as text_batch
from .errors import (
    ArgumentError as ArgumentError,
    HessblocksError as HessblocksError,
    RunError as RunError,
)
from .export import to_gguf as to_gguf
from .inspection import (
    compare as compare,
    measure_curvature as measure_curvature,
    measure_signal as measure_signal,
    read as read,
)
from .linalg import (
    Estimate as Estimate,
    LinearOperator as LinearOperator,
    Spectrum as Spectrum,
    condition_number as condition_number,
    diagonal as diagonal,
    extreme_eigenvalues as extreme_eigenvalues,
    frobenius_norm as frobenius_norm,
    identity_like as identity_like,
    inverse as inverse,
    spectral_density as spectral_density,
    trace as trace,
)
from .models import (
    build as build,
    from_pretrained_blocks as from_pretrained_blocks,
    load as load,
    to_family as to_family,
)
from .tensor_formats import Format as Format, formats as formats
from .training import (
    CurvatureCallback as CurvatureCallback,
    GainCallback as GainCallback,
    SignalCallback as SignalCallback,
)
from .theory import attention_hessian as attention_hessian
