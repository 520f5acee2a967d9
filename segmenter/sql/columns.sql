-- Columns of the tables and views that a query can name.
--
-- table_schema  public for views and attached files, stored for the tables as they are on disk
-- table_name    the table or view
-- column_name   the column
-- position      0-based place in the table
-- data_type     its type
-- is_nullable   YES or NO
SELECT
  table_schema, table_name, column_name, ordinal_position AS position, data_type, is_nullable
FROM information_schema.columns
WHERE table_schema IN ('public', 'stored')
