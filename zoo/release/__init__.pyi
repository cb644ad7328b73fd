from .format import Preprocess as Preprocess
from .release import Release as Release
from .write import write_release as write_release
