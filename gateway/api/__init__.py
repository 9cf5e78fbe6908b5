"""The HTTP surface: Litestar lives here and in `gateway.app`, nowhere else."""
