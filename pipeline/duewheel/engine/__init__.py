"""The timer processor: loop, restore, ownership."""
