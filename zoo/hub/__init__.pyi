from .fetch import load as load
from .fetch import open as open
from .names import ModelRef as ModelRef
from .names import named as named
from .names import resolve as resolve
