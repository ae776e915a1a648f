"""A process's part in a cluster: joining and leaving it, namespaces, and the lines that a driver prints."""
