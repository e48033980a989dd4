"""What holds for all tests: no property is failed by the clock, which tells only how busy the machine is."""

from hypothesis import settings

settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
