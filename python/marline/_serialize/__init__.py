"""How values, code, exceptions and tracebacks travel between processes."""
