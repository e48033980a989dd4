"""Floor 3: from model, memory and engine rule to ceilings, waste, findings and advice."""
