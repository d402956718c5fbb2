#compdef fencepost
# Completes fencepost in zsh. `fencepost completion zsh` prints this.

_fencepost() {
    local dashes=${words[(i)--]} candidate description
    local -a candidates
    # After -- stands the command of `run`: zsh completes it as a command.
    if (( dashes < CURRENT )); then
        shift $dashes words
        (( CURRENT -= dashes ))
        _normal
        return
    fi
    while IFS=$'\t' read -r candidate description; do
        candidates+=("${candidate//:/\\:}${description:+:$description}")
    done < <(fencepost complete-words -- "${(@Q)words[1,CURRENT]}" 2> /dev/null)
    _describe -V fencepost candidates
}

if [[ $funcstack[1] == _fencepost ]]; then
    _fencepost "$@"
else
    compdef _fencepost fencepost
fi
