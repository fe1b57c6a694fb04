"""Operations on whole sessions: copy, import, snapshot, retention and removal."""
