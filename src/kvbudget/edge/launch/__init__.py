"""How people start engines: command lines, scripts, Compose and Kubernetes files. Read, never run."""
