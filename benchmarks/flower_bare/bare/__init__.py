"""The least that a Flower app can do with the bytes of a study."""
