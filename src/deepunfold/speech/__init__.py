"""Speech enhancement with unfolded non-negative models (Section 5 of the paper).

The public names are listed below; each is imported when it is first used. To enhance needs numpy, but not torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepunfold.speech._audio import AudioError, AudioInfo, open_audio, read, read_blocks, writer
    from deepunfold.speech._batch import Report, Settings, enhance_files
    from deepunfold.speech._corpus import Clips, Item, chime2, paired, single
    from deepunfold.speech._enhancer import Enhancer, Stream
    from deepunfold.speech._explain import Explanation, explain, explain_file
    from deepunfold.speech._export import export
    from deepunfold.speech._frontend import Frontend
    from deepunfold.speech._inference import Separator
    from deepunfold.speech._live import Live
    from deepunfold.speech._metrics import pesq, sdr, si_sdr, stoi
    from deepunfold.speech._mixing import Mixer, Mixture
    from deepunfold.speech._model import Model
    from deepunfold.speech._plan import Job, plan

_PLACES = {
    "_audio": ("AudioError", "AudioInfo", "open_audio", "read", "read_blocks", "writer"),
    "_batch": ("Report", "Settings", "enhance_files"),
    "_corpus": ("Clips", "Item", "chime2", "paired", "single"),
    "_enhancer": ("Enhancer", "Stream"),
    "_explain": ("Explanation", "explain", "explain_file"),
    "_export": ("export",),
    "_frontend": ("Frontend",),
    "_inference": ("Separator",),
    "_live": ("Live",),
    "_metrics": ("pesq", "sdr", "si_sdr", "stoi"),
    "_mixing": ("Mixer", "Mixture"),
    "_model": ("Model",),
    "_plan": ("Job", "plan"),
}

__all__ = [
    "AudioError",
    "AudioInfo",
    "Clips",
    "Enhancer",
    "Explanation",
    "Frontend",
    "Item",
    "Job",
    "Live",
    "Mixer",
    "Mixture",
    "Model",
    "Report",
    "Separator",
    "Settings",
    "Stream",
    "chime2",
    "enhance_files",
    "explain",
    "explain_file",
    "export",
    "open_audio",
    "paired",
    "pesq",
    "plan",
    "read",
    "read_blocks",
    "sdr",
    "si_sdr",
    "single",
    "stoi",
    "writer",
]


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"deepunfold.speech.{module}"), name)
    raise AttributeError(f"module 'deepunfold.speech' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
