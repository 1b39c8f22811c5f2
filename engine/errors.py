"""Everything the engine can refuse, as named exceptions.

    EngineError
    ├── ConfigError          a setting is outside its range
    ├── ModelNotFound        no installed package, cache or hub has the model
    ├── ModelLoadError       the checkpoint is there but cannot be used
    ├── EngineFull           no room for another session
    ├── EngineClosed         the engine is stopping or has failed
    └── UnknownSession       the session was never opened or is closed

Every message is a sentence for the person who has to act on it.
"""


class EngineError(Exception):
    """Base of all faults that the engine names."""


class ConfigError(EngineError):
    """A setting is outside its range; the message names it, its value and the bound."""


class ModelNotFound(EngineError):
    """The model is in none of the places searched; the message lists them and what to do."""


class ModelLoadError(EngineError):
    """A checkpoint was found but is damaged, altered or of an unknown layout."""


class EngineFull(EngineError):
    """No room for another session."""


class EngineClosed(EngineError):
    """The engine is stopping or has failed and takes no more work."""


class UnknownSession(EngineError):
    """The session was never opened, or has been closed."""
