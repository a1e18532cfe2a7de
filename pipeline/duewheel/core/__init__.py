"""The pure rules. Imports the standard library only; reads no clock, does no I/O."""
