"""The processes of one gate: started, watched, ended together, and told of as one."""
