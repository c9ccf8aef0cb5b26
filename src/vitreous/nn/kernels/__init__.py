"""What torch has no fused form of: per file a plain torch form, which is the meaning, and maybe a faster one."""
