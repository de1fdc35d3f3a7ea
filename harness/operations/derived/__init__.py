"""Operations derived from definitions: cases, arguments, faults, relations of the outputs."""
