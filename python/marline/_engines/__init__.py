"""``marline.Context``, and the engines that run its work."""
