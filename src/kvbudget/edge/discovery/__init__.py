"""Engines that are found, by DNS, by a Kubernetes service, by a list over HTTP: they come and go while it runs."""
