"""Bridges to the standard library: ``asyncio`` and ``concurrent.futures``."""
