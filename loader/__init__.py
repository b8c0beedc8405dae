"""The dataset on disk and everything that reads it: usable alone, without Ray or curation models.

The public names are listed in ``__init__.pyi``. Each is imported at its first use, so importing the package is cheap
and torch is imported only with ``VideoStream``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
