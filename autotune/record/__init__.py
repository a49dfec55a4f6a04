"""The record: study folders, and the table that is made from them."""
