"""Model packages: one file per version, its contents, signatures and making."""
