"""The former place of the exception classes. Pickles of older releases, in checkpoints, name it."""

from marline._api.errors import *  # noqa: F403
