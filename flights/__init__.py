"""NDVI from nightly flight batches: tiles in, verified products and one honest report out.

No Celery in here: `tasks.py` and `run_batch.py` are the shells that call this library.
"""

__version__ = "0.1.0"
