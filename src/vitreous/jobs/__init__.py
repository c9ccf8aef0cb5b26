"""What the verbs do, as functions: a recipe goes in, a run directory comes out; a run is evaluated."""
