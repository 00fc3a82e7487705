"""The files that users write: their schema, their defaults, their errors."""
