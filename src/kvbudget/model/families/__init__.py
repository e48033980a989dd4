"""Tables of the config classes that we know, by what their layers keep in the cache."""
