"""The functions and classes that users call, their options, and their errors."""
