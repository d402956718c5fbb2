# Completes fencepost in bash. `fencepost completion bash` prints this.

_fencepost() {
    COMPREPLY=()
    local line=${COMP_LINE:0:COMP_POINT} words candidate
    # After -- stands the command of `run`: bash completes it as files.
    if [[ $line == *" -- "* ]]; then
        compopt -o default 2> /dev/null
        return
    fi
    # Bash itself also splits words at : and =, which names of locks contain.
    read -r -a words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local word=${words[${#words[@]} - 1]}
    # Bash replaces only what stands after the last : or =, so what stands before it is no part of a candidate.
    local kept=${word%"${word##*[:=]}"}
    while IFS=$'\t' read -r candidate _; do
        # Quoted, because other users choose the names of locks.
        COMPREPLY+=("$(printf %q "${candidate#"$kept"}")")
    done < <(fencepost complete-words -- "${words[@]}" 2> /dev/null)
    # A directory may go on.
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace 2> /dev/null
    return 0
}

complete -F _fencepost fencepost
