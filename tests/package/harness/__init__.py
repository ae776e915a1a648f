"""What the tests of the package share: clusters, scripts, waits, faults. Fixtures are in `conftest.py`.

Modules that only some tests need may import packages that other tests run without, such as numpy.
So this file imports nothing.
"""
