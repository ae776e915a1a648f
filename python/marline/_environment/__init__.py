"""Runtime environments: how they are parsed, packed, shipped and applied."""
