//! Words that this project does not use, since they hide which component acts or have another name
//! in `docs/glossary.md`.

/// Words that follow the two unwanted pronouns where these stand alone. Before a noun the pair is
/// no pronoun.
const BEHIND_PRONOUN: [&str; 33] = [
    "is", "was", "has", "had", "does", "did", "may", "can", "could", "will", "would", "must",
    "wins", "goes", "comes", "waits", "wants", "needs", "knows", "and", "or", "of", "to", "in",
    "on", "at", "by", "for", "from", "that", "too", "alone", "only",
];

/// Words and phrases in lower case, each with what to write instead.
const UNWANTED: [(&str, &str); 27] = [
    ("who", NAME_THE_ACTOR),
    ("whom", NAME_THE_ACTOR),
    ("whoever", NAME_THE_ACTOR),
    ("whomever", NAME_THE_ACTOR),
    ("somebody", NAME_THE_ACTOR),
    ("somebody's", NAME_THE_ACTOR),
    ("nobody", NAME_THE_ACTOR),
    ("nobody's", NAME_THE_ACTOR),
    ("anybody", NAME_THE_ACTOR),
    ("everybody", NAME_THE_ACTOR),
    ("everybody's", NAME_THE_ACTOR),
    ("that one", NAME_THE_ACTOR),
    ("this one", NAME_THE_ACTOR),
    ("settle", SETTLE),
    ("settles", SETTLE),
    ("settled", SETTLE),
    ("settling", SETTLE),
    ("senseless", "malformed"),
    ("makes no sense", "malformed"),
    ("make no sense", "malformed"),
    ("holdings", "owned slots, or replicas"),
    ("goes by a map", "has applied an epoch"),
    ("go by a map", "have applied an epoch"),
    ("goes by the map", "has applied the epoch"),
    ("go by the map", "have applied the epoch"),
    ("generation of a map", "epoch"),
    ("silent one", "the member that is down"),
];

const NAME_THE_ACTOR: &str = "the name of the component or person that acts";
const SETTLE: &str = "compact, sync, resolve or agree, whichever is meant";

/// What is unwanted in `text`, with what to write instead.
pub fn unwanted(text: &str) -> Vec<(&'static str, &'static str)> {
    // Signs are kept as words of their own, since they end a phrase.
    let mut words: Vec<String> = Vec::new();
    for piece in text.split_whitespace() {
        for word in piece.split(|c: char| !c.is_alphanumeric() && c != '\'') {
            if word.is_empty() {
                words.push(String::new());
            } else {
                words.push(word.to_lowercase());
            }
        }
    }
    let mut found = Vec::new();
    for start in 0..words.len() {
        for (phrase, instead) in UNWANTED {
            let len = phrase.split(' ').count();
            let same = words
                .get(start..start + len)
                .is_some_and(|slice| phrase.split(' ').eq(slice.iter().map(String::as_str)));
            let behind = words.get(start + len).map_or("", String::as_str);
            let is_pronoun = !phrase.ends_with(" one")
                || phrase == "silent one"
                || behind.is_empty()
                || BEHIND_PRONOUN.contains(&behind);
            if same && is_pronoun {
                found.push((phrase, instead));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_phrases_are_found_whatever_their_case_and_parts_of_words_are_not() {
        let found = |text: &str| -> Vec<&str> {
            unwanted(text)
                .into_iter()
                .map(|(phrase, _)| phrase)
                .collect()
        };
        assert_eq!(found("Whoever asks, who?"), ["whoever", "who"]);
        assert_eq!(found("a member goes by the map"), ["goes by the map"]);
        assert_eq!(found("This one is settled."), ["this one", "settled"]);
        assert_eq!(
            found("not that one, but this one"),
            ["that one", "this one"]
        );
        assert!(found("a key that one client writes").is_empty());
        assert!(found("the whole settlement whose one map goes by").is_empty());
    }
}
