"""Which SGLang a launch command would start, and which flags that build has. Asked of it, never guessed."""

from launcher.version.build import SglangBuild, version_tuple
from launcher.version.detect import detect_build

__all__ = ["SglangBuild", "detect_build", "version_tuple"]
