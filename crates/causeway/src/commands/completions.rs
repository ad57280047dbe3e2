//! `causeway completions`: lets the shell finish commands, flags, kinds, names of objects and file names.
//!
//! clap generates the scripts from the command line. Names of objects are added here: the scripts ask the
//! server with `causeway get KIND -o name`, with the kubeconfig of the shell, and offer nothing when it does
//! not answer.

use std::process::ExitCode;

use causeway_api::Kind;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  source <(causeway completions bash)
  causeway completions zsh > ~/.zfunc/_causeway
  causeway completions fish > ~/.config/fish/completions/causeway.fish";

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    shell: Shell,
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "causeway", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    match arguments.shell {
        Shell::Bash => script.push_str(BASH_NAMES),
        Shell::Zsh => script.push_str(ZSH_NAMES),
        Shell::Fish => script.push_str(&fish_names()),
        _ => {}
    }
    output::print(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// `_causeway` is the function that clap generates.
const BASH_NAMES: &str = r#"
_causeway_names() {
    causeway get "$1" -o name 2>/dev/null | sed 's|.*/||'
}
_causeway_with_names() {
    local kind="" word=${COMP_WORDS[COMP_CWORD]}
    if [[ $word != -* ]]; then
        case ${COMP_WORDS[1]} in
            get|describe|delete) [[ $COMP_CWORD -ge 3 && ${COMP_WORDS[COMP_CWORD-1]} != -* ]] && kind=${COMP_WORDS[2]} ;;
            revoke) [[ $COMP_CWORD -eq 2 ]] && kind=egateways ;;
            doctor) [[ $COMP_CWORD -eq 2 ]] && kind=esites,egateways,eservices,eservers ;;
        esac
    fi
    if [[ -n $kind && $kind != -* ]]; then
        COMPREPLY=($(compgen -W "$(_causeway_names "$kind")" -- "$word"))
    else
        _causeway "$@"
    fi
}
complete -F _causeway_with_names -o nosort -o bashdefault -o default causeway
"#;

const ZSH_NAMES: &str = r#"
_causeway_with_names() {
    local kind=""
    case ${words[2]} in
        get|describe|delete) (( CURRENT >= 4 )) && [[ ${words[CURRENT-1]} != -* ]] && kind=${words[3]} ;;
        revoke) (( CURRENT == 3 )) && kind=egateways ;;
        doctor) (( CURRENT == 3 )) && kind=esites,egateways,eservices,eservers ;;
    esac
    if [[ -n $kind && $kind != -* && ${words[CURRENT]} != -* ]]; then
        local -a names
        names=(${(f)"$(causeway get $kind -o name 2>/dev/null | sed 's|.*/||')"})
        compadd -a names
    else
        _causeway "$@"
    fi
}
compdef _causeway_with_names causeway
"#;

/// clap's script for fish leaves out the values of positional arguments, so kinds are added too.
fn fish_names() -> String {
    let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.plural()).chain(["all"]).collect();
    let kinds = kinds.join(" ");
    format!(
        r#"
function __causeway_names
    causeway get $argv[1] -o name 2>/dev/null | string replace -r '.*/' ''
end
function __causeway_words
    count (commandline -opc)
end
complete -c causeway -n "__fish_seen_subcommand_from get describe delete; and test (__causeway_words) -eq 2" -f -a "{kinds}"
complete -c causeway -n "__fish_seen_subcommand_from get describe delete; and test (__causeway_words) -ge 3" -f -a "(__causeway_names (commandline -opc)[3])"
complete -c causeway -n "__fish_seen_subcommand_from revoke; and test (__causeway_words) -eq 2" -f -a "(__causeway_names egateways)"
complete -c causeway -n "__fish_seen_subcommand_from doctor; and test (__causeway_words) -eq 2" -f -a "(__causeway_names esites,egateways,eservices,eservers)"
"#
    )
}
