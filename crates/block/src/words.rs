//! Choices that are named by a word: cache modes, replacement policies, priorities.
//!
//! [`words!`](crate::words) makes such a choice from one table. Parsers, their messages, help texts, JSON,
//! dictionaries of the fuzz targets and tests go by [`Word::ALL`], and the guide's tables are checked against it.

use std::fmt;

/// A choice between kinds, each with its word on the command line, in JSON and in the registry.
pub trait Word: Copy + 'static {
    /// What any other word is: "not a cache mode".
    const WRONG: &'static str;

    /// All kinds, in the order of help and guide.
    const ALL: &'static [Self];

    /// The word.
    fn name(self) -> &'static str;

    /// All words.
    fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|kind| kind.name()).collect()
    }

    /// The kind of a word.
    ///
    /// # Errors
    /// When it is the word of none.
    fn of_name(word: &str) -> Result<Self, UnknownWord> {
        let known = Self::ALL.iter().copied().find(|kind| kind.name() == word);
        known.ok_or_else(|| UnknownWord {
            word: word.to_owned(),
            wrong: Self::WRONG,
            known: Self::names(),
        })
    }
}

/// A word that names no kind; the message lists those that do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    word: String,
    wrong: &'static str,
    known: Vec<&'static str>,
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, wrong, known } = self;
        write!(out, "`{}` is {wrong}: use one of {}", word.escape_default(), known.join(", "))
    }
}

impl std::error::Error for UnknownWord {}

/// Defines an enum as a table of kinds and their words: [`Word`], with `Display` and `FromStr` by the words.
#[macro_export]
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $kind:ident, $wrong:literal {
            $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $kind {
            /// All kinds, in the order of help and guide.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word on the command line, in JSON and in the registry.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl $crate::Word for $kind {
            const WRONG: &'static str = $wrong;
            const ALL: &'static [Self] = &Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }
        }

        impl ::std::fmt::Display for $kind {
            fn fmt(&self, out: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                out.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $kind {
            type Err = $crate::UnknownWord;

            fn from_str(word: &str) -> Result<Self, $crate::UnknownWord> {
                <Self as $crate::Word>::of_name(word)
            }
        }
    };
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro is for public choices")]
mod tests {
    words! {
        /// A colour.
        pub enum Colour, "not a colour" {
            /// As blood.
            Red = "red",
            /// As the sky.
            Blue = "blue",
        }
    }

    #[test]
    fn words_read_back_and_another_one_is_told_which_there_are() {
        for kind in Colour::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!(format!("{:>5}", Colour::Red), "  red");
        let error = "Gr\nn".parse::<Colour>().expect_err("no colour").to_string();
        assert_eq!(error, "`Gr\\nn` is not a colour: use one of red, blue");
    }
}
