//! `outside serve --model model`, and every other command of `piecewise`.

fn main() -> std::process::ExitCode {
    piecewise_cli::main_with(outside::registries())
}
