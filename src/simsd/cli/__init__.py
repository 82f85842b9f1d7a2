"""The command line: one module a command, all flags in `options`, all errors in `errors`."""
